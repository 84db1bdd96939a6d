package wire

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
)

// The runner makes a folder of certificates for each run; a failure here is a failure of the row.
func pair(folder, name string) []tls.Certificate {
	own, err := tls.LoadX509KeyPair(filepath.Join(folder, name, "tls.crt"), filepath.Join(folder, name, "tls.key"))
	if err != nil {
		panic(err)
	}
	return []tls.Certificate{own}
}

func authority(folder string) *x509.CertPool {
	pool := x509.NewCertPool()
	pem, err := os.ReadFile(filepath.Join(folder, "ca.crt"))
	if err != nil || !pool.AppendCertsFromPEM(pem) {
		panic(errors.Join(err, errors.New("no authority in "+folder)))
	}
	return pool
}

// ServerTLS is HTTP/1.1 and HTTP/2 by ALPN.
func ServerTLS(folder string, mutual bool) *tls.Config {
	config := &tls.Config{Certificates: pair(folder, "server"), NextProtos: []string{"h2", "http/1.1"}}
	if mutual {
		config.ClientCAs, config.ClientAuth = authority(folder), tls.RequireAndVerifyClientCert
	}
	return config
}

// ClientTLS believes the run's authority alone, and shows a certificate if mutual.
func ClientTLS(folder string, mutual bool) *tls.Config {
	config := &tls.Config{RootCAs: authority(folder)}
	if mutual {
		config.Certificates = pair(folder, "client")
	}
	return config
}
